"""What an instance's memory is, what it goes to, and what a micro-batch takes of it (note 045).

`budget`: who gets which part; `batch_memory`: how many bytes a batch reads, learnt from those
before. Both decide, and are pure. `machine` and `peak` look at the machine and at this process.
May import layer 0.
"""
