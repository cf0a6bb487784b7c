"""The tests mirror the package: tests/core/test_node.py tests fulgurite/core/node.py."""
