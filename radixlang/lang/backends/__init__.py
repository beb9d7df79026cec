"""Where calls of programs go: one file per kind of backend, all behind `base.Backend`."""
