"""The version, also for modules that must not import what `everstep` offers."""

__version__ = "0.1.0"
