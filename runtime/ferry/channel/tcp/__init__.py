"""Channels over TCP. It must never know what a message means."""
