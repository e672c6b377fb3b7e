"""Makes the engine's environment and the bundled model."""
