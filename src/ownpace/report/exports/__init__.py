"""Runs in the formats of other tools: a trace for Perfetto, curves as CSV, scalars for TensorBoard and W&B.

trace     what every node did when, as trace events
csv_file  evaluations, one line each
scalars   what is drawn over samples, thinned
loggers   whoever takes scalars: TensorBoard, W&B
"""
