"""Jinja environments of eyas's own templates. A template that uses an unknown name fails."""

from typing import Any

import jinja2


def template_environment(package: str, path: str = "templates", **options: Any) -> jinja2.Environment:
    """Returns an environment that finds the templates of a package. Lines with a block alone leave no blank line.

    Args:
        package: The package, such as "eyas.deploy".
        path: The directory of the templates in the package.
        options: Further options of jinja2.Environment.
    """
    loader = jinja2.PackageLoader(package, path)
    options |= {"trim_blocks": True, "lstrip_blocks": True, "undefined": jinja2.StrictUndefined}
    return jinja2.Environment(loader=loader, **options)
