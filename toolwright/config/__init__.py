"""The configuration: a typed schema, YAML presets over it, and where each value came from."""

from toolwright.config.batch import batch_line
from toolwright.config.schema import Config, SupervisedConfig
from toolwright.config.stored import from_yaml, to_yaml
