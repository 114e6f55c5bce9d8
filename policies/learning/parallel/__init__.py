"""One update by several threads or processes: what an algorithm asks (`learners`), and what joins them (`group`)."""
