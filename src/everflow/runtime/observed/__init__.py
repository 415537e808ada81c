"""Looks at an instance for those who watch it (note 049).

`observer` makes an `everflow.observe.observation.Observation` of it, and keeps how busy it was;
`broker_facts` asks what only the
brokers know; `topic_letters` looks into its dead letter topic and replays. May
import layers 0 and 1, `everflow.observe`, and of the runtime the instance, its tasks and wiring. It
runs in the driver, on the server's threads and one of its own.
"""
