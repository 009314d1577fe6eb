"""Prints the definition of the custom resource, or with `fields` the page docs/fields.md: see `make crds`."""

from __future__ import annotations

import sys

from ferry_operator.crd.fields_page import page
from ferry_operator.crd.schema import definition, to_yaml

sys.stdout.write(page() if sys.argv[1:] == ["fields"] else to_yaml(definition()))
