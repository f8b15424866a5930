"""The TLS layer: what goes in on one side comes out on the other, whatever is in between."""

import asyncio
import ssl
from collections.abc import Callable

import pytest
import uvloop

from certificates import Authority
from quorumlog.transport.tls import Identity, IncomingTls, OutgoingTls
from quorumlog.transport.tls_contexts import client_context
from quorumlog.transport.tls_layer import TlsLayer
