"""Policy files on a model hub: what people look for them with, and a card that says what a file says of itself."""
