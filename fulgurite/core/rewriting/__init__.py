"""Rewriting of graphs: patterns, rules, substitution and the e-graph."""
