"""Deployable folders: `timebound pack` writes an app, and what runs it elsewhere, from templates."""
