from ...graph.fusion.machine import SHIPPED as SHIPPED
