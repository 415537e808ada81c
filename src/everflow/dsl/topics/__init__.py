"""How a program's topics are read and written: what the keywords of sources and sinks may be.

`record_time`: ``timestamp=``. `resets`: ``offset_reset=``. `sinks`: the topic that is written, and
``partitioner=``; `printing`: what people are shown instead.
May import what `everflow.dsl` may.
"""
