"""May this request come in: whose is it, is its model there, is there room, is the server staying?"""

from timebound.admission.client import Client
from timebound.admission.gate import Gate
from timebound.admission.held import Held, Hold
from timebound.admission.keys import Keys
from timebound.admission.peers import Peers

__all__ = ["Client", "Gate", "Held", "Hold", "Keys", "Peers"]
