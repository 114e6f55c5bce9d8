"""Sentences for policies: a frozen encoder of what was said."""
