"""Bytes: connections, HTTP/1.1, stream framing and the readings taken when bytes leave the socket."""
