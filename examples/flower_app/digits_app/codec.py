"""What client and server have to agree on."""

from edgegossip import codecs

UPDATES = codecs.get("co3", stage="auto")  # boards' changes: about 2.5 bits a value, with error memory on the client
MODELS = codecs.get("4-bit-elastiquant")  # differences of the model on their way down
