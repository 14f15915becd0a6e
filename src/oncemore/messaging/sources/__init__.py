"""The queues and the HTTP endpoint that an inbox receives messages from; may import `messaging`, `http`."""
