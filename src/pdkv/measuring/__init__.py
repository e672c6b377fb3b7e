"""Launches, warms, loads and watches servers; writes raw evidence only."""
