"""Tests; a package of its own name, since other distributions install one as well."""
