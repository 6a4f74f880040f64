"""Items: a conversation in the words of the Responses API, read and written (P1, P2, P10).

Responses and conversations share them.
"""
