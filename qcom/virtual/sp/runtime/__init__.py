"""What translated kernels run on: worker contexts, wave states, the launch loop."""
