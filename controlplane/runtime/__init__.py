"""The impure loop: runs actions, journalled, and keeps things up."""
