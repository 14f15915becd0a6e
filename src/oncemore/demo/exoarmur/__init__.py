"""The demo of an agent on a bus of three NATS servers, one of which is killed.

`exoarmur_demo.py` runs `scenes.py`; `agent.py` is the program of a user; `host_services.py` is a process that
records every effect on a host.
"""
