"""pdkv: which vLLM deployment mode and KV-cache precision is better at what, by how much, and how sure that is."""

__version__ = "0.1.0"
