"""Public fakes: a scripted provider, a scripted upstream, a clock moved by hand."""
