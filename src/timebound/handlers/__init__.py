"""Model archives as TorchServe and MMS pack them: opened, and served by the handlers in them."""
