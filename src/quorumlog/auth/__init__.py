"""Who somebody is, and what they may do: decided without clock, file or socket."""
