"""How a scripted reply looks in each provider's words: frames of a stream, a plain body, an error.

Written by hand from the providers' documents and not with our own codecs, so that the one can test the other.
"""
