"""Sentences for policies: a tokeniser that robots can run, and a frozen encoder of what was said."""
