"""Loads the plugin in a plain checkout; an installed bench-lib loads it by its entry point."""

pytest_plugins = ["bench_lib.plugin", "pytester"]
