"""Other people's libraries, and what their errors mean."""
