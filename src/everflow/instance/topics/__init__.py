"""The cluster's topics and their ends. May import layer 0, topology, `state.store`; ports ask
the engines."""
