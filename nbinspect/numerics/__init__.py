"""Where values go wrong: the first NaN or Inf that matters, room to overflow, checked gradients."""
