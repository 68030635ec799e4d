"""The files a run leaves behind: checkpoints, evaluations, reports, videos and demonstrations."""
