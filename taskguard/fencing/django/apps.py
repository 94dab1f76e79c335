from django.apps import AppConfig


class FencingConfig(AppConfig):
    name = "taskguard.fencing.django"
    label = "taskguard_fencing"
    verbose_name = "taskguard: fences"
