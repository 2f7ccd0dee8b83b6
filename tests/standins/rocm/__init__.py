"""Stand-ins of a machine with AMD's GPUs; `machine` describes one and lays it out."""
