"""The shortest complete extensions of this project; docs/extending.md lists them."""
