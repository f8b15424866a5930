"""The consensus core: events in, effects out; no clock, socket, file, thread or chance inside."""
