"""Operations in flight: asynchronous copies and products, and their barriers."""
