"""What each peer serves: the image ensemble, written as its documentation says."""
