"""Renderers: from blocks to text, HTML, SVG and PNG."""
