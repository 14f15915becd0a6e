"""Other people's libraries, and what their errors mean.

`classify` says of any exception what kind of failure it is. What it knows about one family of
clients is one small module here, mostly a table; none of them ever imports the client.
"""
