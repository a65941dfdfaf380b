"""Dialects: a request's body out, a response's events in; one small module each."""
