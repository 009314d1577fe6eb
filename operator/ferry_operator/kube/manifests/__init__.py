"""Pure: the objects of a job, and the values that the installation provides for every job."""
