"""The demo of a pipeline that is killed three times and finishes, in three processes.

`pipeline_demo.py` starts, kills and shows two programs: `user_program.py`, the program of a user, and
`shop_services.py`, a payment provider and a webhook receiver that record every effect.
"""
