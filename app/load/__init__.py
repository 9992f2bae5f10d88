"""`sightline bench`: a load generator for any OpenAI-compatible chat endpoint.

    arguments -> options -> plan -> senders -> session -> run -> client -> samples -> summary -> report

Nothing here knows Ray or an engine: it asks over HTTP, as a user would. docs/load_generator.md says what
each figure means.
"""
