"""The shortest complete extensions of this project; docs/change_it.md lists them."""
